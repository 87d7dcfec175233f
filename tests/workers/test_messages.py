"""What somebody can do who may write to Valkey: messages start work, and carry nothing that is trusted."""

import inspect

from athanor.config.celery import app


def test_a_message_only_starts_a_task() -> None:
    app.loader.import_default_modules()
    tasks = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    assert len(tasks) > 20
    for name, task in tasks.items():  # `**_`: arguments of an older version's messages are ignored
        (ignored,) = inspect.signature(task.run).parameters.values()
        assert (ignored.name, ignored.kind) == ("_", inspect.Parameter.VAR_KEYWORD), name


def test_no_message_is_unpickled() -> None:
    assert set(app.conf.accept_content) == {"json"}
    assert app.conf.task_serializer == "json"
