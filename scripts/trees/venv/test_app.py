import app


def test_a_page_is_rendered():
    assert app.page() == f"edition {app.EDITION}"


def test_numbers_are_added():
    assert app.total() == 45


def test_names_are_stored():
    assert app.names() == ["one"]
