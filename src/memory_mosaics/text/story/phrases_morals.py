"""The morals, by the lesson that what happened teaches."""

TEXT = """
== moral_deed
{a} [learned|had learned|now knew] that [a good deed comes back|kindness comes back to those who give it].
[Remember|So remember this]: help others, and one day [they may help you|somebody will help you].
== moral_deed_not
[Remember|So remember this]: if you do not help others, [there may be nobody to help you|you may stand alone one day].
{a} [understood|saw now] that those who pass by [may be passed by, too|are left alone in the end].
== moral_honest
{a} [learned|had learned] that [the truth is hard to say but good to have said|telling the truth makes the heart light].
[Remember|So remember this]: a broken thing can be fixed, and [the truth is always the best glue|a true word helps].
== moral_lie
{a} [learned|saw now] that [a lie breaks more than a cup|it is hard to win back trust after a lie].
[Remember|So remember this]: [a lie never stays hidden|what is hidden comes out], so tell the truth [at once|right \
away].
== moral_careful
[Remember|So remember this]: [take care of the things you love|look after your things, or you may lose them].
[From that day on|After that], {a} [took better care of {a.his} things|always looked twice before {a.he} left].
== moral_kind_others
{a} [learned|saw] that [there are kind people everywhere|it is good to keep safe what others lose].
== moral_ask
{a} [learned|found out] that [it is smart to ask for help|two heads remember more than one].
[Remember|So remember this]: [ask, and somebody may know the answer|you do not have to remember everything alone].
== moral_giving
{a} [learned|found out] that [giving is as nice as getting|the best part of a present is giving it].
[Remember|So remember this]: [giving makes two people happy|a gift from the heart is the best gift].
== moral_together
{a} [learned|saw] that [two can do what one cannot|it is easier with a friend].
== moral_trust
[Remember|So remember this]: [if you take care of what others lend you, they will trust you|trust grows when you \
keep it].
== moral_sorry
{a} [learned|had learned] that [it is never too late to say sorry|saying sorry can mend a friendship].
[Remember|So remember this]: when you do something wrong, [say sorry and make it right|make it good again].
== moral_sorry_not
[Remember|So remember this]: [without a sorry, a friend may stay away|pride is a poor friend].
== moral_trade_not
[Remember|So remember this]: [those who give nothing get nothing|if you hold on to everything, your hands are never \
free].
== moral_patience
[Remember|So remember this]: [good things take time|step by step, you get there|if you do not give up, you get there].
{a} [learned|had learned] that [waiting and working pays off|patience is worth it].
== moral_patience_not
[Remember|So remember this]: [those who stop too soon get nothing|good things need care every day].
== moral_promise
[Remember|So remember this]: [a promise is a promise|keep your word, for somebody waits for it].
{a} [learned|knew now] how much a promise [means|is worth] to a friend.
== moral_kind_new
[Remember|So remember this]: [be kind to those who are new|somebody new may become your best friend].
{a} [learned|saw] that [everybody can do something well|one kind word can make a friend].
== moral_kind_new_not
[Remember|So remember this]: [speak up when somebody is left out|being quiet can hurt, too].
== moral_share
{a} [learned|had learned] that [sharing makes everything taste better|those who share are never poor].
[Remember|So remember this]: [share what you have, and others will share with you|a shared treat is twice as sweet].
== moral_share_not
[Remember|So remember this]: [those who do not share may end up with nothing|it is sad to eat alone].
== moral_help_win
{a} [learned|saw] that [being kind is better than being first|there is more than one way to win].
== moral_win_not
{a} [learned|saw] that [winning is no fun without friends|a prize cannot take the place of a friend].
== moral_proud
[Remember|So remember this]: [do not be too proud|look where you run, and do not boast], or you may fall.
== moral_fair
[Remember|So remember this]: [play fair and share the joy|it is good to win, and better to share].
== moral_accuse
{a} [learned|had learned] that [it is wrong to blame others too fast|you should be sure before you blame somebody].
[Remember|So remember this]: [look twice before you point at somebody|a guess is not the truth].
== moral_accuse_not
[Remember|So remember this]: [if you blame a friend, and you are wrong, say so|a wrong word can cost a friend].
== moral_keep_trying
[Remember|So remember this]: [do not give up too soon|try again, and then once more].
{a} [learned|had learned] that [the second try can be the good one|you only lose if you stop].
== moral_keep_trying_not
[Remember|So remember this]: [those who throw it all away cannot finish it|nothing is ever finished by giving up].
== moral_tell
[Remember|So remember this]: [always tell your friends when you leave|do not make your friends worry].
== moral_friend_care
{a} [learned|saw] that [a good friend helps without being asked|good friends care for what you love].
== moral_listen
[Remember|So remember this]: [it is good to listen when older people warn you|a good warning is worth listening to].
{a} [learned|had learned] that [older people often know what is coming|a warning can be a gift].
== moral_listen_not
[Remember|So remember this]: [listen to good advice, or you may get wet|when somebody warns you, listen].
== moral_listen_good
{a} [learned|saw] that [it pays to listen to old stories|those who listen well find treasures].
[Remember|So remember this]: [keep your ears open|old words can open new doors].
== moral_think
{a} [learned|had learned] that [thinking helps more than crying|a calm head finds the way].
== moral_greedy
[Remember|So remember this]: [do not take what is meant for others|a moment of greed can spoil a whole day].
== moral_errand
[Remember|So remember this]: [do what you said you would do, and people will be glad|good helpers are loved by all].
== moral_fear
{a} [learned|found out] that [things are less scary when you look at them|most monsters are not monsters at all].
[Remember|So remember this]: [turn on the light, and the monster is gone|what scares you may be very small].
== moral_fear_not
[Remember|So remember this]: [fear grows when you hide from it|look at what scares you, or it will stay].
== moral_free
{a} [learned|understood] that [if you love somebody, you let them be free|a friend is not a thing to keep].
== moral_free_not
[Remember|So remember this]: [you cannot lock up a friend|wild hearts need to be free].
== moral_gentle_hands
[Remember|So remember this]: [gentle hands open more than strong ones|be gentle, or things will break].
"""
