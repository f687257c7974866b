/*
 * The Ditto JavaScript client at work: prints `ok NAME` or `failed NAME: why` for each story, all at once.
 *
 * Arguments: the gateway (host:port), and the stories to run; without arguments it prints their names.
 *
 * The client has no functions to send acknowledgements, to answer messages, to filter events and to search by the
 * protocol: such messages go through its own connection (`tell`, `ask`).
 */
'use strict';

const assert = require('node:assert');
const { randomUUID } = require('node:crypto');
const {
  DefaultCountOptions,
  DefaultMatchOptions,
  DefaultSearchOptions,
  DittoNodeClient,
  NodeHttpBasicAuth,
  NodeWebSocketBasicAuth,
  Thing,
} = require('@eclipse-ditto/ditto-javascript-client-node');

const NAMESPACE = 'org.acme.js';
const PATIENCE = 120_000;
const SEARCH = '_/_/things/twin/search';
const [gateway, ...chosen] = process.argv.slice(2);

// -- clients ----------------------------------------------------------------------------------------------------------

/** Declares labels by a header of the connection: the client's extension point for that. */
function declaring(labels) {
  return {
    authenticateWithUrl: url => url,
    authenticateWithHeaders: headers => headers.set('declared-acks', JSON.stringify(labels)),
  };
}

async function connect({ labels = [], channel = 'twin', onError = () => undefined } = {}) {
  const connected = later();
  const builder = DittoNodeClient.newWebSocketClient()
    .withoutTls()
    .withDomain(gateway)
    .withAuthProvider(NodeWebSocketBasicAuth.newInstance('ditto', 'ditto'), declaring(labels))
    .withReconnect(false)
    .withoutBuffer();
  const nothing = () => undefined;
  const client = (channel === 'twin' ? builder.twinChannel() : builder.liveChannel())
    .withStateHandler({
      connected: connected.resolve, buffering: nothing, backPressure: nothing, reconnecting: nothing,
      bufferFull: nothing, disconnected: nothing,
    })
    .build();
  client.responseHandler.subscribe({ matches: message => message.topic.endsWith('/errors'), callback: onError });
  await connected.promise;
  return client;
}

/** Sends a text through the connection of a client. */
const tell = (client, message) =>
  client.responseHandler.resilienceHandler.send(typeof message === 'string' ? message : JSON.stringify(message));

/** Sends a text with this correlation-id, and returns what the client gets under it. */
function ask(client, correlationId, message) {
  return within(new Promise((resolve, reject) => {
    client.responseHandler.requests.set(correlationId, { resolve, reject });
    tell(client, message);
  }));
}

// -- what the stories share -------------------------------------------------------------------------------------------

function later() {
  const made = {};
  made.promise = within(new Promise(resolve => {
    made.resolve = resolve;
  }));
  return made;
}

function within(promise, milliseconds = PATIENCE) {
  const limit = new Promise((_, reject) => {
    setTimeout(() => reject(new Error('nothing came')), milliseconds).unref();
  });
  const limited = Promise.race([promise, limit]);
  limited.catch(() => undefined);
  return limited;
}

const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));

async function fails(promise) {
  let found;
  try {
    found = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`no error but ${JSON.stringify(found)}`);
}

const id = name => `${NAMESPACE}:${name}`;
const topic = (name, rest) => `${NAMESPACE}/${name}/things/${rest}`;
const thing = (name, attributes) => Thing.fromObject({ thingId: id(name), attributes });
const things = client => client.getThingsHandle();

function acks(seconds, ...labels) {
  return DefaultMatchOptions.getInstance()
    .addHeader('requested-acks', JSON.stringify(labels))
    .addHeader('timeout', `${seconds}s`);
}

/** Asks for acknowledgements; the client's own functions know the statuses 201 and 204 alone. */
const modify = (client, name, labels) => within(client.responseHandler.sendRequest(
  topic(name, 'twin/commands/modify'), '/attributes/x', 1, { 'requested-acks': labels, timeout: '60s' },
));

function ack(event, name, label, status, value) {
  const headers = { 'correlation-id': event.headers['correlation-id'] };
  return { topic: topic(name, `twin/acks/${label}`), headers, path: '/', value, status };
}

/** A client that acknowledges every change of a thing that asks for its label. */
async function party(name, label, status) {
  const client = await connect({ labels: [label] });
  const events = client.getEventsHandle();
  await within(events.requestEvents());
  events.subscribeToThing(id(name), event => {
    if ((event.headers['requested-acks'] || []).includes(label)) {
      tell(client, ack(event, name, label, status, label));
    }
  });
  return client;
}

// -- the twin ---------------------------------------------------------------------------------------------------------

async function twinCommands() {
  const client = await connect();
  const created = await things(client).createThing(thing('twin', { x: 1 }));
  assert.strictEqual(created.status, 201);
  await things(client).putAttribute(id('twin'), 'room', 'hall');
  await client.getFeaturesHandle(id('twin')).putFeature({ id: 'lamp', toObject: () => ({ properties: { on: false } }) });
  await client.getFeaturesHandle(id('twin')).putProperty('lamp', 'on', true);
  await things(client).patchAttributes(id('twin'), { floor: 3, x: null });
  const found = await things(client).getThing(id('twin'));
  assert.deepStrictEqual(found.attributes, { room: 'hall', floor: 3 });
  assert.strictEqual(await client.getFeaturesHandle(id('twin')).getProperty('lamp', 'on'), true);
  assert.strictEqual(await things(client).getAttribute(id('twin'), 'room'), 'hall');
  await things(client).deleteThing(id('twin'));
  assert.strictEqual((await fails(things(client).getThing(id('twin')))).error, 'things:thing.notfound');
  client.close();
}

async function events() {
  const listener = await connect();
  const client = await connect();
  const handle = listener.getEventsHandle();
  const seen = [];
  const first = later();
  await things(client).createThing(thing('events', { x: 0, room: 'hall' }));
  await within(handle.requestEvents());
  listener.responseHandler.subscribe({
    matches: message => message.topic === topic('events', 'twin/events/modified'),
    callback: message => { seen.push(message); first.resolve(); },
  });
  const filter = encodeURIComponent('and(gt(attributes/x,5),eq(attributes/room,"hall"))');
  await tell(listener, `START-SEND-EVENTS?namespaces=${NAMESPACE}&filter=${filter}&extraFields=attributes/room`);
  // what follows is read after it
  assert.strictEqual((await things(listener).getThing(id('events'))).thingId, id('events'));
  await things(client).putAttribute(id('events'), 'x', 1);
  await things(client).putAttribute(id('events'), 'x', 7);
  await first.promise;
  assert.deepStrictEqual(seen.map(event => [event.path, event.value]), [['/attributes/x', 7]]);
  await within(handle.stopEvents());
  await things(client).putAttribute(id('events'), 'x', 8);
  await pause(3_000);
  assert.strictEqual(seen.length, 1);
  listener.close();
  client.close();
}

async function eventsOfAThing() {
  const listener = await connect();
  const client = await connect();
  const handle = listener.getEventsHandle();
  const heard = later();
  await things(client).createThing(thing('heard', { x: 0 }));
  await within(handle.requestEvents());
  handle.subscribeToAttribute(id('heard'), 'x', heard.resolve);
  await things(client).putAttribute(id('heard'), 'x', 5);
  const event = await heard.promise;
  assert.deepStrictEqual([event.action, event.path, event.value], ['modified', '/attributes/x', 5]);
  listener.close();
  client.close();
}

async function badFilter() {
  const client = await connect();
  const found = await ask(client, 'bad-filter', 'START-SEND-EVENTS?filter=eq(attributes/x&correlation-id=bad-filter');
  assert.deepStrictEqual([found.status, found.body.error], [400, 'rql.expression.invalid']);
  await within(client.getEventsHandle().requestEvents());
  client.close();
}

async function conditions() {
  const client = await connect();
  const put = (x, options) => things(client).putAttribute(id('conditions'), 'x', x, options);
  const options = () => DefaultMatchOptions.getInstance();
  await things(client).createThing(thing('conditions', { x: 1 }));
  await put(2, options().addHeader('condition', 'eq(attributes/x,1)'));
  const refused = await fails(put(3, options().addHeader('condition', 'eq(attributes/x,1)')));
  assert.deepStrictEqual([refused.status, refused.error], [412, 'things:condition.failed']);
  assert.strictEqual((await fails(put(3, options().ifNoneMatchAny()))).status, 412);
  assert.strictEqual((await fails(put(3, options().ifMatch('"rev:99"')))).status, 412);
  assert.strictEqual(await things(client).getAttribute(id('conditions'), 'x'), 2);
  client.close();
}

// -- acknowledgements -------------------------------------------------------------------------------------------------

async function acksSucceed() {
  const client = await connect();
  await things(client).createThing(thing('fine', { x: 0 }));
  const first = await party('fine', 'js:fine', 200);
  const second = await party('fine', 'js:too', 202);
  const found = await modify(client, 'fine', ['twin-persisted', 'js:too', 'js:fine']);
  assert.deepStrictEqual([found.status, Object.keys(found.body)], [200, ['twin-persisted', 'js:too', 'js:fine']]);
  assert.deepStrictEqual([found.body['js:too'].status, found.body['js:too'].payload], [202, 'js:too']);
  [client, first, second].forEach(one => one.close());
}

async function ackFails() {
  const client = await connect();
  await things(client).createThing(thing('denied', { x: 0 }));
  const other = await party('denied', 'js:denied', 403);
  const found = await fails(things(client).putAttribute(id('denied'), 'x', 1, acks(60, 'twin-persisted', 'js:denied')));
  assert.deepStrictEqual([found['twin-persisted'].status, found['js:denied'].status], [204, 403]);
  other.close();
  client.close();
}

async function nobody() {
  const client = await connect();
  await things(client).createThing(thing('nobody', { x: 0 }));
  const found = await fails(things(client).putAttribute(id('nobody'), 'x', 1, acks(15, 'twin-persisted', 'js:nobody')));
  assert.strictEqual(found['js:nobody'].status, 408);
  assert.strictEqual(found['js:nobody'].payload.error, 'acknowledgement:request.timeout');
  client.close();
}

async function undeclared() {
  const client = await connect();
  const holder = await connect({ labels: ['js:real'] });
  const stranger = await connect();
  const heard = later();
  await things(client).createThing(thing('undeclared', { x: 0 }));
  const handle = holder.getEventsHandle();
  await within(handle.requestEvents());
  handle.subscribeToThing(id('undeclared'), heard.resolve);
  const answer = modify(client, 'undeclared', ['twin-persisted', 'js:real']);
  let done = false;
  answer.finally(() => { done = true; }).catch(() => undefined);
  const event = await heard.promise;
  const refused = await ask(
    stranger, event.headers['correlation-id'], ack(event, 'undeclared', 'js:real', 400),
  );
  assert.deepStrictEqual([refused.status, refused.body.error], [400, 'acknowledgement:label.not.declared']);
  assert.strictEqual(done, false);
  await tell(holder, ack(event, 'undeclared', 'js:real', 200));
  assert.strictEqual((await within(answer)).status, 200);
  [client, holder, stranger].forEach(one => one.close());
}

async function labelConflict() {
  const first = await connect({ labels: ['js:mine'] });
  await within(first.getEventsHandle().requestEvents());
  const refused = later();
  await connect({ labels: ['js:mine'], onError: refused.resolve });
  const error = await refused.promise;
  assert.deepStrictEqual([error.value.status, error.value.error], [409, 'acknowledgement:label.not.unique']);
  first.close();
}

// -- the live channel -------------------------------------------------------------------------------------------------

async function liveMessages() {
  const device = await connect({ channel: 'live' });
  const client = await connect({ channel: 'live' });
  const inbox = device.getMessagesHandle();
  await within(inbox.requestMessages());
  inbox.subscribeToThing(id('messages'), message => {
    const headers = { 'correlation-id': message.headers['correlation-id'], 'content-type': 'text/plain' };
    tell(device, { topic: message.topic, path: message.path, headers, value: `${message.value}!`, status: 418 });
  });
  const found = await within(client.getMessagesHandle().messageToThing(id('messages'), 'ask', '?', 'text/plain'));
  assert.deepStrictEqual([found.status, found.body], [418, '?!']);
  const options = DefaultMatchOptions.getInstance().addHeader('timeout', '3s');
  const late = await within(client.getMessagesHandle().messageToThing(id('deaf'), 'ask', '?', 'text/plain', options));
  assert.deepStrictEqual([late.status, late.body.error], [408, 'command.timeout']);
  device.close();
  client.close();
}

async function liveCommands() {
  const device = await connect({ channel: 'live' });
  const listener = await connect({ channel: 'live' });
  const client = await connect({ channel: 'live' });
  const heard = later();
  const commands = device.getCommandsHandle();
  await within(commands.requestCommands());
  commands.subscribeToAttribute(id('live'), 'x', command => {
    const headers = { 'correlation-id': command.headers['correlation-id'] };
    tell(device, { topic: command.topic, path: command.path, headers, status: 204 });
    const happened = command.topic.replace('commands/modify', 'events/modified');
    tell(device, { topic: happened, path: command.path, headers: {}, value: command.value });
  });
  const events = listener.getEventsHandle();
  await within(events.requestEvents());
  events.subscribeToThing(id('live'), heard.resolve);
  const answer = await within(things(client).putAttribute(id('live'), 'x', 5));
  assert.strictEqual(answer.status, 204);
  const event = await heard.promise;
  assert.deepStrictEqual([event.topic, event.value], [topic('live', 'live/events/modified'), 5]);
  [device, listener, client].forEach(one => one.close());
}

// -- search -----------------------------------------------------------------------------------------------------------

async function fill(client, kind, number) {
  const names = [...Array(number).keys()].map(index => `${kind}-${index}`);
  await Promise.all(names.map(name => things(client).createThing(thing(name, { kind }))));
  return names.map(id);
}

async function search() {
  const client = await connect();
  const names = await fill(client, 'searched', 5);
  const http = DittoNodeClient.newHttpClient()
    .withoutTls()
    .withDomain(gateway)
    .withAuthProvider(NodeHttpBasicAuth.newInstance('ditto', 'ditto'))
    .build();
  const options = () => DefaultSearchOptions.getInstance()
    .withRawFilter('eq(attributes/kind,"searched")')
    .withNamespaces(NAMESPACE)
    .withFields('thingId')
    .withSort('+thingId')
    .withPageSize(3);
  const first = await within(http.getSearchHandle().search(options()));
  const second = await within(http.getSearchHandle().search(options().withCursor(first.cursor)));
  assert.deepStrictEqual([...first.items, ...second.items].map(found => found.thingId), names);
  const counted = DefaultCountOptions.getInstance()
    .withRawFilter('eq(attributes/kind,"searched")')
    .withNamespaces(NAMESPACE);
  assert.strictEqual(await within(http.getSearchHandle().count(counted)), 5);
  client.close();
}

/** Subscribes to a search by the protocol; `wait` returns the next event of it. */
async function subscription(client, value) {
  const waiting = [];
  const seen = [];
  client.responseHandler.subscribe({
    matches: message => message.topic.startsWith(`${SEARCH}/`),
    callback: message => {
      const event = { action: message.topic.split('/').pop(), value: message.value };
      if (waiting.length) waiting.shift()(event);
      else seen.push(event);
    },
  });
  const created = await within(client.responseHandler.sendRequest(`${SEARCH}/subscribe`, '/', value, {}));
  const subscriptionId = created.body.subscriptionId;
  const send = (action, more) =>
    client.responseHandler.sendMessage(`${SEARCH}/${action}`, '/', { subscriptionId, ...more }, { 'correlation-id': randomUUID() });
  const wait = () => (seen.length ? Promise.resolve(seen.shift()) : within(new Promise(resolve => waiting.push(resolve))));
  return { seen, wait, request: demand => send('request', { demand }), cancel: () => send('cancel') };
}

async function searchByProtocol() {
  const client = await connect();
  const names = await fill(client, 'paced', 5);
  const query = { filter: 'eq(attributes/kind,"paced")', options: 'sort(+thingId),size(2)', namespaces: [NAMESPACE] };
  const found = await subscription(client, query);
  await pause(1_000);
  assert.deepStrictEqual(found.seen, []);
  const items = [];
  for (const size of [2, 2, 1]) {
    await found.request(1);
    const page = await found.wait();
    assert.deepStrictEqual([page.action, page.value.items.length], ['next', size]);
    items.push(...page.value.items.map(item => item.thingId));
  }
  assert.strictEqual((await found.wait()).action, 'complete');
  assert.deepStrictEqual(items, names);
  await found.request(1);
  const after = await found.wait();
  assert.deepStrictEqual([after.action, after.value.error.status], ['failed', 400]);
  client.close();
}

async function badSearch() {
  const client = await connect();
  const found = await subscription(client, { filter: 'eq(attributes/kind' });
  await found.request(1);
  const end = await found.wait();
  assert.deepStrictEqual([end.action, end.value.error.error], ['failed', 'rql.expression.invalid']);
  client.close();
}

async function cancelledSearch() {
  const client = await connect();
  const found = await subscription(client, { filter: 'exists(thingId)', options: 'size(1)' });
  await found.cancel();
  await found.request(1);
  const end = await found.wait();
  assert.deepStrictEqual([end.action, end.value.error.error], ['failed', 'thing-search:subscription.protocol.error']);
  client.close();
}

// ---------------------------------------------------------------------------------------------------------------------

const STORIES = {
  'twin-commands': twinCommands,
  'events-with-filter-and-extra-fields': events,
  'events-of-a-thing': eventsOfAThing,
  'a-bad-filter-is-an-error-of-its-subscription': badFilter,
  'acks-succeed-and-are-aggregated': acksSucceed,
  'an-ack-fails': ackFails,
  'nobody-acknowledges': nobody,
  'an-undeclared-label-does-not-end-the-wait': undeclared,
  'live-messages': liveMessages,
  'live-commands-and-events': liveCommands,
  'search-over-http': search,
  'search-by-the-protocol': searchByProtocol,
  'a-search-with-a-bad-filter-fails': badSearch,
  'a-search-is-cancelled': cancelledSearch,
  'conditions': conditions,
  'a-label-belongs-to-one-client': labelConflict,
};

async function run(name) {
  let line = `ok ${name}`;
  try {
    await STORIES[name]();
  } catch (error) {
    line = `failed ${name}: ${error instanceof Error ? error.stack : JSON.stringify(error)}`.replace(/\s+/g, ' ');
  }
  console.log(line);
}

// a closed connection of the client is a rejection that nobody can handle; a failed assertion ends everything
process.on('unhandledRejection', (reason) => {
  if (reason instanceof assert.AssertionError) {
    throw reason;
  }
});

if (gateway === undefined) {
  console.log(Object.keys(STORIES).join('\n'));
} else {
  Promise.all((chosen.length ? chosen : Object.keys(STORIES)).map(run)).then(() => process.exit(0));
}
