from __future__ import annotations

from flexrlhf.report.markup import element, folded, join, table


def test_text_and_attributes_are_escaped():
    written = element("p", "<b> & co", title='"quoted"')
    assert written == '<p title="&quot;quoted&quot;">&lt;b&gt; &amp; co</p>'


def test_elements_are_not_escaped_again():
    assert element("p", element("b", "a<b")) == "<p><b>a&lt;b</b></p>"


def test_names_of_attributes():
    assert element("a", class_="x", data_figure="f") == '<a class="x" data-figure="f"></a>'


def test_a_void_element_has_no_end():
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_join_escapes_what_is_not_markup():
    assert join(["<", element("i", ">")]) == "&lt;<i>&gt;</i>"


def test_tables_and_folded_blocks_escape_their_cells():
    assert "<td>&lt;script&gt;</td>" in table(("<h>",), [("<script>",)])
    assert folded("<t>", "<c>") == "<details><summary>&lt;t&gt;</summary>&lt;c&gt;</details>"
