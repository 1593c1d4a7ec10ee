"""Pages and npm packages that run a network in the browser, from the templates in this folder."""

from tenon.runtime.web.npm import npm_package
from tenon.runtime.web.page import page
from tenon.runtime.web.text_page import text_page
from tenon.runtime.web.webgpu_form import WebGpuForm

__all__ = ["WebGpuForm", "npm_package", "page", "text_page"]
