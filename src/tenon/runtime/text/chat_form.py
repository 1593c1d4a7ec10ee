"""Chat templates as literal texts around messages, for programs without Jinja.

A template is rendered for conversations of known messages; what stands between these is what it writes around any
others in the same place.  ``runtime/c/text_chat.c`` puts the texts together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from tenon.errors import InputError, ModelError, Problem, UnsupportedError
from tenon.runtime.text.chat_template import NO_JINJA, Messages, conversation

TEXTS = ("before_user", "before_system", "system_to_user", "user_to_answer", "answer_to_user", "after_user")
"""The texts of a ``ChatForm``, in the order that they have in tables."""
_ROLES = {"s": "system", "u": "user", "a": "assistant"}
_PLAIN = ("u", "uau", "uauau")
_WITH_SYSTEM = ("su", "suau", "suauau")
_FOREIGN = "\u00fc \u4f60\u597d \U0001f600\u00a0"
_TRIALS = ("word", "two\nlines\n\n", "  spaces \t", _FOREIGN, "{{braces}}[INST]", "# 1")
_THOUGHT = "<think>\nsome\n</think>\n\nanswer"


@dataclass(frozen=True)
class ChatForm:
    """The texts that a chat template writes around the messages (system) user assistant user ... user.

    ``before_user`` stands in front of the first message of a conversation without a system message, ``before_system``
    and ``system_to_user`` around a system message, ``after_user`` behind the last message: the beginning of an answer.
    ``trims`` are the roles ("s", "u", "a") from whose messages white space is removed at both ends;
    ``drops_thoughts``: of earlier answers, what stands before "</think>" is left out.
    """

    before_user: str
    user_to_answer: str
    answer_to_user: str
    after_user: str
    has_system: bool = False
    before_system: str = ""
    system_to_user: str = ""
    trims: frozenset[str] = frozenset()
    drops_thoughts: bool = False

    @property
    def flags(self) -> int:
        """The number ``chat`` of tables (``runtime/c/text_chat.c``)."""
        trimmed = sum(4 << i for i, role in enumerate("sua") if role in self.trims)
        return 1 + 2 * self.has_system + trimmed + 32 * self.drops_thoughts

    def rendered(self, messages: Messages) -> str:
        """The text of a conversation, with the beginning of an answer.  Raises InputError for other roles than the
        form has."""
        roles = "".join({role: letter for letter, role in _ROLES.items()}.get(m["role"], "?") for m in messages)
        if roles.startswith("s") and not self.has_system:
            raise InputError("the chat template takes no message of the system in programs in C")
        turns = roles.removeprefix("s")
        if turns != "ua" * (len(turns) // 2) + "u":
            raise InputError("messages are one of the system, if any, and then of user and assistant in turn")
        between = {"s": self.system_to_user, "u": self.user_to_answer, "a": self.answer_to_user}
        text = self.before_system if roles.startswith("s") else self.before_user
        for at, (role, message) in enumerate(zip(roles, messages, strict=True)):
            text += self._content(role, message["content"])
            text += self.after_user if at == len(roles) - 1 else between[role]
        return text

    def _content(self, role: str, content: str) -> str:
        if role == "a" and self.drops_thoughts and "</think>" in content:
            content = content.rsplit("</think>", 1)[1].lstrip("\n")
        return content.strip() if role in self.trims else content


def chat_form(template: str, names: Mapping[str, str]) -> ChatForm:
    """The form of a chat template; ``names`` are as for ``conversation``.

    Raises UnsupportedError for a template that writes something else, InputError if the package jinja2 is missing.
    """
    if find_spec("jinja2") is None:
        raise InputError(NO_JINJA)
    probe = _Probe(template, names)
    first, *others = (probe.between(roles) for roles in _PLAIN)
    repeated = others[0][1:-1]
    trims = frozenset(role for role in "ua" if probe.trims(role))
    form = ChatForm(first[0], repeated[0], repeated[1], first[-1], trims=trims)
    form = probe.with_system(form)
    for roles in (*_PLAIN, *(_WITH_SYSTEM if form.has_system else ())):
        for shift in range(len(_TRIALS)):
            contents = [_TRIALS[(at + shift) % len(_TRIALS)] for at in range(len(roles))]
            if form.rendered(_messages(roles, contents)) != probe.text(roles, contents):
                raise _unsupported(f"it writes messages of the form {contents[0]!r} in another way than it does others")
    return form if not probe.drops_thoughts(form) else probe.without_thoughts(form)


class _Probe:
    """Renders a template for messages of its own."""

    def __init__(self, template: str, names: Mapping[str, str]) -> None:
        self._template, self._names = template, names

    def text(self, roles: str, contents: Sequence[str]) -> str:
        """The text of a conversation.  Raises UnsupportedError for a template that refuses it."""
        try:
            return conversation(self._template, _messages(roles, contents), self._names, today=False)
        except (ModelError, InputError) as error:
            raise _unsupported(str(error)) from error

    def between(self, roles: str) -> list[str]:
        """The texts around the messages of a conversation."""
        marks = [f"M{number}ark" for number in range(len(roles))]
        text, parts = self.text(roles, marks), list[str]()
        for mark in marks:
            if text.count(mark) != 1:
                raise _unsupported("it leaves messages out, repeats them or changes their order")
            before, text = text.split(mark)
            parts.append(before)
        return [*parts, text]

    def trims(self, role: str) -> bool:
        """Whether white space around messages of a role is removed."""
        roles = {"u": "u", "a": "uau", "s": "su"}[role]
        mark = " \n Mark \n "
        text = self.text(roles, [mark if letter == role and at < 2 else "other" for at, letter in enumerate(roles)])
        return mark not in text

    def with_system(self, form: ChatForm) -> ChatForm:
        """The form with a message of the system, where the template has that in front of the first one of the user."""
        try:
            before, inner, *_ = self.between("su")
            made = replace(
                form,
                has_system=True,
                before_system=before,
                system_to_user=inner,
                trims=form.trims | ({"s"} if self.trims("s") else set()),
            )
            for roles in _WITH_SYSTEM:
                marks = [f"M{number}ark" for number in range(len(roles))]
                if made.rendered(_messages(roles, marks)) != self.text(roles, marks):
                    return form
        except UnsupportedError:
            return form
        return made

    def drops_thoughts(self, form: ChatForm) -> bool:
        """Whether earlier answers are written without what stands before "</think>"."""
        contents = ["one", _THOUGHT, "two"]
        return form.rendered(_messages("uau", contents)) != self.text("uau", contents)

    def without_thoughts(self, form: ChatForm) -> ChatForm:
        """The form that leaves thoughts out."""
        made = replace(form, drops_thoughts=True)
        if self.drops_thoughts(made):
            raise _unsupported('it changes answers with "</think>"')
        return made


def _messages(roles: str, contents: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": _ROLES[role], "content": text} for role, text in zip(roles, contents, strict=True)]


def _unsupported(why: str) -> UnsupportedError:
    problem = Problem("chat template", f"programs in C cannot write it: {why}", "Python and tenon serve can")
    return UnsupportedError("chat template", [problem])
