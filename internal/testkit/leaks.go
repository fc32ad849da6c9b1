package testkit

import "go.uber.org/goleak"

// NATSLeaks returns options of goleak that ignore goroutines which NATS leaves at times and which nothing can stop: the
// file of a stream that a store makes while it is stopped, the response of a follower to a request for the state of a
// stream, which comes 0.5 s later (both nats-server 2.15), and one per object that is stored so fast that its publisher
// is cleaned up before the goroutine begins to wait (nats.go 1.55).
func NATSLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*stream).processClusterStreamInfoRequest"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"),
	}
}
