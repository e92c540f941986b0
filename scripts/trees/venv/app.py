import numpy
import sqlalchemy
from django.template import Context, Engine

EDITION = 0


def page():
    return Engine().from_string("edition {{ edition }}").render(Context({"edition": EDITION}, use_l10n=False, use_tz=False))


def total():
    return int(numpy.arange(10).sum())


def names():
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("create table names (name text)"))
        connection.execute(sqlalchemy.text("insert into names values ('one')"))
        return [row[0] for row in connection.execute(sqlalchemy.text("select name from names"))]
