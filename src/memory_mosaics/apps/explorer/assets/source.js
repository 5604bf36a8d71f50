// The source of what a pane shows: the server, or a saved record.

const SERVED = {
  read: (body) => postJson("/api/read", body),
  look: (body) => postJson("/api/look", body),
  has: () => true,
};

class Saved {
  constructor(record) { this.record = record; }

  async read() { return this.record.read; }

  async look({ look: { position, memory, target } }) {
    const { read, overview, memories } = this.record;
    const here = position - read.first;
    const seen = memory && memories[memoryKey(memory)]?.[here];
    if (position === read.look.position && target !== null) return { ...read.look, memory: seen };
    const [text, , id] = (read.edited || read).best[here][0];
    return { position, overview: overview[here], target: [text, id], memory: seen };
  }

  // Of a long text, the record has one memory in detail.
  has(memory) { return memoryKey(memory) in this.record.memories; }
}
