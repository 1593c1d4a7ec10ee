"""No machine code: targets that are only planned and printed for."""

from tenon.machine.object_formats.base import ObjectFormat


class NoObject(ObjectFormat):
    compiled = False


FORMAT = NoObject()
