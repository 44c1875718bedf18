"""The list of models."""

from __future__ import annotations

from tests.server.serving import scripted, serving


def test_the_list_has_the_served_model_with_its_fitted_context() -> None:
    with serving(scripted(max_model_len=123)) as server:
        (card,) = server.get("/v1/models").json()["data"]
        assert card.pop("created") == int(server.state.started_s)
        assert card == {
            "id": "demo",
            "object": "model",
            "owned_by": "corefw",
            "max_model_len": 123,
            "root": "test:demo",
            "parent": None,
        }
        assert server.get("/v1/models/demo").json()["id"] == "demo"


def test_a_model_that_is_not_served_is_not_found() -> None:
    with serving(scripted()) as server:
        for name in ("other", "demo/x", "a" * 1000, "%00", "DEMO"):
            answer = server.get(f"/v1/models/{name}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            assert len(answer.content) < 2048


def test_a_wrong_model_is_named_beside_those_that_are_served() -> None:
    with serving(scripted()) as server:
        answer = server.get("/v1/models/other")
        assert answer.json()["error"]["message"] == "the model 'other' does not exist; this server has demo"
