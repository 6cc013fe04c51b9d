/**
 * Client of the connection gateway Weir, for browsers and Node.
 *
 * @packageDocumentation
 */

export type { Advice } from './backoff.js';
export { CallError } from './calls.js';
export type { Answer, Call, CallHandler, CallResult, IncomingCall } from './calls.js';
export { WeirClient } from './client.js';
export type { ClientEvents, Closed, Expiring, Opened, Reconnecting } from './client.js';
export { WeirError } from './errors.js';
export type { Ending } from './line.js';
export type {
  SubscribeOptions,
  TokenReason,
  TopicOptions,
  WeirClientOptions,
  WebSocketConstructor,
  WebSocketLike,
} from './options.js';
export { Subscription } from './subscription.js';
export type { NotRecovered, Presence, Subscribed, SubscriptionEvents, Unsubscribed } from './subscription.js';
export type { TransportKind } from './ways.js';
export { formatPosition, parsePosition } from './wire.js';
export type { Member, Message, Payload, Position, Publication, Published } from './wire.js';
