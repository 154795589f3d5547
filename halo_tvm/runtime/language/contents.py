"""What messages say, in the form that a chat template reads: texts, or lists of parts.

Most templates print `content` as it is, where a list would come out as Python writes it. Those of models that see walk
over parts, and find none in a text. Which is which shows when a template is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...errors import UsageError

Message = Mapping[str, object]
Prompt = Callable[[Sequence[Message]], str]
_BETWEEN = "\n"  # parts that become one text
_PROBE = "halo {}\ntext"  # its line break is escaped where a list is printed


def prompt_of(messages: Sequence[Message], rendered: Prompt, refusals: tuple[type[Exception], ...]) -> str:
    """What `rendered` makes of `messages`, in the form of which it prints most texts.

    Parts stay parts where the template walks over them, else their texts are joined by line breaks. Texts stay texts
    where it prints them, else they are lists of one part. `rendered` raises one of `refusals`, which pass, as does
    `UsageError` for a part that is no text.
    """
    texts = [_with(message, _said(message.get("content"))) for message in messages]
    has_parts = any(isinstance(message.get("content"), (list, tuple)) for message in messages)
    if not has_parts:
        try:
            prompt = rendered(messages)
        except refusals:
            prompt = ""
        if prompt and all(_text(m).strip() in prompt for m in messages):
            return prompt

    def printed(form: Sequence[Message]) -> int:
        """How many of the texts of this form come out whole."""
        probes = [_PROBE.format(i) for i in range(len(form))]
        try:
            found = rendered([_probed(message, probe) for message, probe in zip(form, probes)])
        except refusals:
            return 0
        return sum(probe in found for probe in probes)

    parts = [_with(message, _parts(message.get("content"))) for message in messages]
    forms = (messages, parts, (*texts[:1], *parts[1:]), texts)  # some print the instructions in front and walk the rest
    best = max(forms, key=printed)  # the first of equals
    return rendered(best if printed(best) else texts)


def _said(content: object) -> object:
    """The text of a list of parts; whatever else stands there stays."""
    if not isinstance(content, (list, tuple)):
        return content
    texts = []
    for part in content:
        found = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(found, str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise UsageError(
                f'expected parts of messages like {{"type": "text", "text": ...}}, found {kind!r:.80}: the model reads '
                "text alone; leave that part out"
            )
        texts.append(found)
    return _BETWEEN.join(texts)


def _parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _probed(message: Message, probe: str) -> Message:
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        return _with(message, [{"type": "text", "text": probe}])
    return _with(message, probe) if isinstance(content, str) else message


def _with(message: Message, content: object) -> Message:
    return {**message, "content": content} if "content" in message else message


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
