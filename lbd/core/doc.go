// Package core is the balancer's mind: Balancer.Step takes one event and the
// time and returns what to do about it. It holds no goroutine, socket, file,
// clock or global randomness, so production, the simulator and a replay of a
// production log run the very same decisions.
//
// The shell around it (lbd/proxy in production, lbd/sim in the simulator) turns
// sockets or an event heap into Events, keeps Step behind one lock, and carries
// out the Actions. Times are durations since the balancer's epoch on one
// monotonic clock; no time of another host ever enters, only ages.
//
// A request's life:
//
//	arrived -> queued -> dispatched to a replica -> finished
//	                \-> forwarded to a peer      -> finished
//	                \-> bounced back to the peer it came from
//	                \-> rejected (with a reason), cancelled
//
// A failed or bounced request goes back to its old place in the queue. At all
// times: arrived = finished + rejected + cancelled + bounced + queued + outstanding.
//
// Read event.go first (what goes in and out), then balancer.go and place.go, and
// batch.go for policies that decide for a whole pool;
// share.go and foreign.go are what balancers of one region tell each other, and
// reconfigure.go changes the configuration while requests are in flight.
package core
