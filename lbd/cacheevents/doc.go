// Package cacheevents receives the cache events of engines: vLLM and SGLang publish which blocks of
// tokens their prefix caches store and evict, as msgpack messages over ZeroMQ.
//
// Read decode.go for the messages, then sequence.go for how lost messages and restarted engines are
// noticed, and subscriber.go for the connection. lbd/cachemap says which prompts the blocks belong to.
//
// What is guaranteed: a consumer that applies the updates of a Subscriber in order never has a block
// that the engine has evicted, except for the time that messages take and while the connection is
// broken. When messages are lost and the engine cannot replay them, or the engine was restarted, the
// update says so with Reset, and the consumer must forget everything about that engine. Blocks that were
// stored before the first received message are unknown, unless the engine replays them.
package cacheevents
