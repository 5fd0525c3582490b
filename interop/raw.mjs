// A client of no SDK: every frame and every way to leave is as the test says.
//
// A wire is opened by one of `wires` and has send(message), and close ways of its
// own; what comes over it goes to its `heard`.

import { EventEmitter, once } from "node:events";
import http from "node:http";
import net from "node:net";
import { createInterface } from "node:readline";

const meta = "io.modelcontextprotocol/";
const info = { name: "raw", version: "1" };
const capabilities = { elicitation: {}, sampling: {}, roots: {} };
const modernVersion = "2026-07-28";

/** A client on a wire, of one era; `received` is all that came. */
export class Client extends EventEmitter {
  received = [];
  ids = 0;

  constructor(wire, era = "legacy") {
    super();
    Object.assign(this, { wire, era });
    wire.heard = (message) => {
      this.received.push(message);
      this.emit("message", message);
    };
  }

  /** Sends a request, and returns its id. */
  send(method, params = {}) {
    const id = ++this.ids;
    this.wire.send({ jsonrpc: "2.0", id, method, params: this.era === "modern" ? enveloped(params) : params });
    return id;
  }

  notify(method, params = {}) {
    this.wire.send({ jsonrpc: "2.0", method, params });
  }

  answer(id, result) {
    this.wire.send({ jsonrpc: "2.0", id, result });
  }

  /** The first message, come or to come, that is like this; an error if one is answered with an error. */
  async message(like, seconds = 20) {
    const signal = AbortSignal.timeout(seconds * 1000);
    for (;;) {
      const found = this.received.find(like);
      if (found) return found;
      const refusal = this.received.findLast((m) => m.error && !m.error.data?.retryable);
      if (refusal) throw new Error(JSON.stringify(refusal));
      await once(this, "message", { signal }).catch(() => {
        throw new Error(`nothing of the kind came in ${seconds} s: ${JSON.stringify(this.received)}`);
      });
    }
  }

  answers(id) {
    return this.received.filter((m) => m.id === id && !("method" in m));
  }

  answered(id, seconds) {
    return this.message((m) => m.id === id && !("method" in m), seconds);
  }

  async initialize() {
    if (this.era === "modern") return this.discover();
    const id = this.send("initialize", { protocolVersion: "2025-11-25", capabilities, clientInfo: info });
    const { error } = await this.answered(id, 40);
    if (error) throw new Error(`initialize: ${JSON.stringify(error)}`);
    this.notify("notifications/initialized");
    await this.wire.listen?.();
  }

  /** Asks who is there, until somebody is: where a link has just come up, that takes a moment. */
  async discover() {
    for (;;) {
      const { error } = await this.answered(this.send("server/discover"), 60);
      if (!error) return;
      if (!error.data?.retryable) throw new Error(`server/discover: ${JSON.stringify(error)}`);
    }
  }

  /** Calls a tool; progress is wanted under the call's own name. */
  call(name, call) {
    return this.send("tools/call", { name, arguments: { call }, _meta: { progressToken: call } });
  }
}

/** How a request of the modern era is posted: the options of a fetch. */
export function posted(method, params = {}, headers = {}) {
  const message = { jsonrpc: "2.0", id: 1, method, params: enveloped(params) };
  const usual = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  return { method: "POST", headers: { ...usual, ...modernHeaders(message), ...headers }, body: JSON.stringify(message) };
}

function enveloped(params) {
  const _meta = {
    ...params._meta,
    [`${meta}protocolVersion`]: modernVersion,
    [`${meta}clientInfo`]: info,
    [`${meta}clientCapabilities`]: capabilities,
  };
  return { ...params, _meta };
}

/** The wire to a child process, which speaks on stdin and stdout. */
export function stdioWire({ process: { stdin, stdout } }) {
  const wire = { send: (message) => stdin.write(`${JSON.stringify(message)}\n`) };
  stdin.on("error", () => {}); // whoever is killed does not read
  createInterface({ input: stdout }).on("line", (line) => wire.heard(JSON.parse(line)));
  wire.halfClose = () => stdin.end();
  wire.vanish = () => {
    stdin.destroy();
    stdout.destroy();
  };
  return wire;
}

const handshake = [
  "GET /ws HTTP/1.1",
  "Host: localhost",
  "Upgrade: websocket",
  "Connection: Upgrade",
  "Sec-WebSocket-Version: 13",
  "Sec-WebSocket-Protocol: mcp",
  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
  "",
  "",
];

/** A WebSocket to HOST:PORT, in whole frames; pings are answered. */
export async function webSocketWire(host) {
  const [name, port] = host.split(":");
  const socket = net.connect(port, name);
  socket.on("error", () => {});
  socket.write(handshake.join("\r\n"));
  let buffer = Buffer.alloc(0);
  const opened = new Promise((resolve) => (socket.onopen = resolve));
  const wire = {
    send: (message) => socket.write(frame(1, Buffer.from(JSON.stringify(message)))),
    close: () => socket.write(frame(8, Buffer.from([1000 >> 8, 1000 & 255]))),
    reset: () => socket.resetAndDestroy(),
  };
  socket.on("data", (data) => {
    buffer = Buffer.concat([buffer, data]);
    if (socket.onopen) {
      const end = buffer.indexOf("\r\n\r\n");
      if (end < 0) return;
      buffer = buffer.subarray(end + 4);
      socket.onopen();
      socket.onopen = undefined;
    }
    for (let next = parse(buffer); next; next = parse(buffer)) {
      buffer = buffer.subarray(next.size);
      if (next.opcode === 1) wire.heard(JSON.parse(next.payload));
      if (next.opcode === 9) socket.write(frame(10, next.payload));
      if (next.opcode === 8) socket.end();
    }
  });
  await opened;
  return wire;
}

/** A frame with a mask of zeros, which leaves the payload as it is. */
function frame(opcode, payload) {
  const long = payload.length > 125;
  const head = Buffer.alloc(long ? 8 : 6);
  head[0] = 0x80 | opcode;
  head[1] = 0x80 | (long ? 126 : payload.length);
  if (long) head.writeUInt16BE(payload.length, 2);
  return Buffer.concat([head, payload]);
}

function parse(buffer) {
  if (buffer.length < 2) return;
  let [size, length] = [2, buffer[1] & 127];
  if (length === 126) [size, length] = [4, buffer.length < 4 ? Infinity : buffer.readUInt16BE(2)];
  if (length === 127) [size, length] = [10, buffer.length < 10 ? Infinity : Number(buffer.readBigUInt64BE(2))];
  if (buffer.length < size + length) return;
  return { opcode: buffer[0] & 15, payload: buffer.subarray(size, size + length), size: size + length };
}

/** Streamable HTTP to a URL, a connection for each request, and one to listen on. */
export function httpWire(url) {
  const requests = new Set();
  const wire = { url, requests, session: undefined };
  let sent = Promise.resolve(); // a notification must not overtake what came before it
  wire.send = (message) => {
    sent = sent.then(() => post(wire, message)).catch(() => {});
  };
  wire.listen = async () => {
    await sent;
    const request = open(wire, "GET", { Accept: "text/event-stream" });
    request.end();
    const [response] = await once(request, "response");
    read(wire, response);
  };
  wire.drop = () => requests.forEach((request) => request.destroy());
  wire.remove = async () => {
    const request = open(wire, "DELETE", {});
    request.end();
    const [response] = await once(request, "response");
    response.resume();
    return response.statusCode;
  };
  return wire;
}

function open(wire, method, headers) {
  const session = wire.session && { "Mcp-Session-Id": wire.session, "MCP-Protocol-Version": "2025-11-25" };
  const request = http.request(wire.url, { method, agent: false, headers: { ...session, ...headers } });
  request.on("error", () => {}).on("close", () => wire.requests.delete(request));
  wire.requests.add(request);
  return request;
}

/** Posts a message; resolves when the server has taken it. */
async function post(wire, message) {
  const request = open(wire, "POST", {
    "Content-Type": "application/json",
    Accept: "application/json, text/event-stream",
    ...modernHeaders(message),
  });
  request.end(JSON.stringify(message));
  if (message.id !== undefined && message.method && message.method !== "initialize") {
    request.on("response", (response) => read(wire, response));
    return;
  }
  const [response] = await once(request, "response");
  wire.session ??= response.headers["mcp-session-id"];
  await read(wire, response);
}

function modernHeaders({ method, params }) {
  if (!params?._meta?.[`${meta}protocolVersion`]) return {};
  const name = params.name && { "Mcp-Name": params.name };
  return { "MCP-Protocol-Version": modernVersion, "Mcp-Method": method, ...name };
}

async function read(wire, response) {
  response.setEncoding("utf8").on("error", () => {});
  if (!response.headers["content-type"]?.startsWith("text/event-stream")) {
    let body = "";
    for await (const text of response) body += text;
    if (body.startsWith("{")) wire.heard(JSON.parse(body));
    return;
  }
  const lines = createInterface({ input: response });
  lines.on("error", () => {});
  lines.on("line", (line) => line.startsWith("data: {") && wire.heard(JSON.parse(line.slice(6))));
}
