try:  # the code of this model is a package
    from memory_mosaics.huggingface import MosaicConfig, MosaicForCausalLM, MosaicForQuestionAnswering
    from memory_mosaics.huggingface import MosaicForSequenceClassification, MosaicForTokenClassification, MosaicModel
except ImportError as error:
    raise ImportError("this model needs memory-mosaics: pip install 'memory-mosaics[hf]'") from error
