"""What the site shows that is not in docs/: a hook of MkDocs.

Links in docs/ are those of the repository, so that they work on its pages too. What
they lead to outside of docs/ becomes a page of the site: Markdown as it is, notebooks
with the outputs that are stored in them, and code with its lines numbered.

MathJax, which sets the formulas, is a part of the site: a page loads nothing from
elsewhere.
"""

import base64
import importlib.util
import json
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.structure.files import File


_root = Path(__file__).parent.parent
_LINK = re.compile(r"(?<=\]\()([\w./-]+)(?:#([\w-]+))?(?=\))")
_FENCE = "`````"
# By the page of the site, the file of the repository; and the other way round.
_sources, _pages = {}, {}


def _cell(cell, name, images):
    """The Markdown of a cell of a notebook. Pictures are added to `images`."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return source
    parts = [f"{_FENCE}python\n{source}\n{_FENCE}"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            image = f"{name}_{len(images)}.png"
            images[image] = base64.b64decode(data["image/png"])
            parts.append(f"![Output of the code above]({image})")
        else:
            text = "".join(output.get("text", data.get("text/plain", "")))
            parts.append(f"{_FENCE}text\n{text.rstrip()}\n{_FENCE}")
    return "\n\n".join(parts)


def _mathjax():
    """The files of MathJax that pages load: what sets formulas, and its fonts."""
    (package,) = importlib.util.find_spec("mathjax").submodule_search_locations
    root = Path(package) / "static/mathjax"
    yield "mathjax/LICENSE", root / "LICENSE"
    folder = root / "es5"
    fonts = folder.glob("output/chtml/fonts/woff-v2/*.woff")
    for path in (folder / "tex-chtml.js", *sorted(fonts)):
        # Beside the script, where it looks for them.
        yield f"mathjax/{path.relative_to(folder).as_posix()}", path


def _made(path):
    """What the site has for a file outside of docs/, by name."""
    source = _root / path
    if path.endswith(".ipynb"):
        images, name = {}, source.stem
        cells = json.loads(source.read_text())["cells"]
        text = "\n\n".join(_cell(cell, name, images) for cell in cells)
        folder = dirname(path)
        page = path.removesuffix(".ipynb") + ".md"
        return {page: text} | {join(folder, image): images[image] for image in images}
    if path.endswith(".py"):
        code = f'{_FENCE}{{.python linenums="1"}}\n{source.read_text()}\n{_FENCE}'
        return {f"{path}.md": f"# {path}\n\n{code}\n"}
    return {path: source.read_bytes()}


def _targets(path, text):
    """The files of the repository to which a text links, by what stands in the link."""
    for link, _ in _LINK.findall(text):
        target = normpath(join(dirname(path), link))
        if (_root / target).is_file():
            yield link, target


def on_files(files, config):
    for uri, path in _mathjax():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for file in files.documentation_pages():
        path = f"docs/{file.src_uri}"
        _sources[file.src_uri], _pages[path] = path, file.src_uri
    queue = [(path, (_root / path).read_text()) for path in _pages]
    for path, text in queue:
        for _, target in _targets(path, text):
            if target in _pages or target.startswith("docs/"):
                continue
            made = _made(target)
            for uri, content in made.items():
                files.append(File.generated(config, uri, content=content))
            page = next(iter(made))
            _sources[page], _pages[target] = target, page
            if page.endswith(".md"):
                text = made[page]
                queue.append((target, text if type(text) is str else text.decode()))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    targets = dict(_targets(_sources[uri], markdown))

    def replace(match):
        link, anchor = match.groups()
        target = targets.get(link)
        if target is None:
            return match[0]
        to = relpath(_pages.get(target, target.removeprefix("docs/")), dirname(uri))
        if anchor is None:
            return to
        return f"{to}#{re.sub(r'^L(?=[0-9])', '__codelineno-0-', anchor)}"

    return _LINK.sub(replace, markdown)


def on_page_content(html, page, config, files):
    """Public names in plain code, as one types them, lead to their entries."""
    # Lines of code are not among the anchors that MkDocs finds.
    page.present_anchor_ids.update(re.findall(r'id="(__codelineno-[\d-]+)"', html))
    link = r'<autoref optional identifier="hybridjax.\1">\g<0></autoref>'
    return re.sub(r"<code>hj\.([\w.]+)</code>(?!</a>)", link, html)
