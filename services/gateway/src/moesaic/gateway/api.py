"""The endpoints that generate: a request becomes a plan, the plan runs, its updates become an answer or a stream."""

from __future__ import annotations

import asyncio
import secrets
import time

from aiohttp import web

from moesaic.gateway import body, plan, replies
from moesaic.gateway.admission import Admission
from moesaic.gateway.catalog import Catalog
from moesaic.gateway.chat import conversation
from moesaic.gateway.choice import Delta
from moesaic.gateway.envelope import REQUEST_ID
from moesaic.gateway.errors import ApiError, internal
from moesaic.gateway.generation import Generation, Update
from moesaic.gateway.models import Model
from moesaic.gateway.operations import answer
from moesaic.gateway.runner import Mesh
from moesaic.gateway.schema import GenerationRequest
from moesaic.gateway.sse import HEADERS, EventStream
from moesaic.shared import log


class Api:
    """Handlers of one gateway."""

    def __init__(self, mesh: Mesh, catalog: Catalog, admission: Admission) -> None:
        self._mesh = mesh
        self._catalog = catalog
        self._admission = admission
        self._log = log.get("gateway")

    def routes(self) -> list[web.RouteDef]:
        """Every endpoint."""
        return [
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/completions", self._completion),
        ]

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        self._admission.check()
        request = body.chat_request(await http.read())
        model = self._catalog.find(request.model)
        template = model.chat_template
        messages = conversation(request.messages, developer=template.knows_developer)
        text = template.render(messages, request.chat_template_kwargs)
        prompt = await model.vocabulary.encode(text, special=False)
        made = self._plan(http, request, model, [prompt])
        return await self._answer(http, made, replies.ChatReply(made, _name("chatcmpl"), int(time.time())))

    async def _completion(self, http: web.Request) -> web.StreamResponse:
        self._admission.check()
        request = body.completion_request(await http.read())
        model = self._catalog.find(request.model)
        prompts = [
            await model.vocabulary.encode(prompt, special=True) if isinstance(prompt, str) else prompt
            for prompt in request.prompts()
        ]
        made = self._plan(http, request, model, prompts)
        return await self._answer(http, made, replies.CompletionReply(made, _name("cmpl"), int(time.time())))

    def _plan(self, http: web.Request, request: GenerationRequest, model: Model, prompts: list[list[int]]) -> plan.Plan:
        return plan.make(
            request,
            model,
            prompts,
            name=_name(http[REQUEST_ID][:64]),
            seed=secrets.randbits(62),
            deadline=time.time() + self._mesh.config.request_timeout_s,
        )

    async def _answer(self, http: web.Request, made: plan.Plan, reply: replies.Reply) -> web.StreamResponse:
        generation = Generation(self._mesh, made)
        with self._admission.holding(generation):
            async with generation.running():
                first = await generation.next()  # what is wrong before the first token must not be a 200
                if made.request.stream:
                    return await self._stream(http, made, reply, generation, first)
                return await self._whole(made, reply, generation, first)

    async def _whole(
        self, made: plan.Plan, reply: replies.Reply, generation: Generation, update: Update | None
    ) -> web.Response:
        choices: list[list[Delta]] = [[] for _ in made.jobs]
        while update is not None:
            choices[update.index].append(update.delta)
            update = await generation.next()
        return answer(reply.whole(choices, generation.usage))

    async def _stream(
        self, http: web.Request, made: plan.Plan, reply: replies.Reply, generation: Generation, update: Update | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=HEADERS | {"x-request-id": http[REQUEST_ID]})
        await response.prepare(http)
        events = EventStream(response)
        try:
            while update is not None:
                for chunk in reply.chunks(update):
                    await events.send(chunk)
                update = await self._next(generation, events)
            if made.request.wants_usage:
                await events.send(reply.usage_chunk(generation.usage))
            await events.done()
        except ApiError as error:
            await events.fail(error)
        except ConnectionResetError:
            self._log.debug("the client has left", request=http[REQUEST_ID])
        except Exception as error:  # noqa: BLE001  # the rim: after the headers only an event can tell of it
            self._log.exception("a stream failed", request=http[REQUEST_ID], error=repr(error))
            await events.fail(internal("internal error"))
        return response

    async def _next(self, generation: Generation, events: EventStream) -> Update | None:
        while True:
            try:
                async with asyncio.timeout(self._mesh.config.keepalive_s):
                    return await generation.next()
            except TimeoutError:
                await events.comment()


def _name(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"
