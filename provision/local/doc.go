// Package local provisions a service on this machine: simulated engines, balancers and a controller as
// background processes on the loopback address.
//
// The observed state is the set of held locks. Every background process takes an exclusive advisory
// lock on its own object file when it starts, writes its description there, and keeps the lock for its
// life (Hold). So nothing has to be recorded when a process is started, a crash between starting and
// recording leaves no orphan, a reused process id causes no mix-up, and a second copy of the same
// object fails to start. A process whose object file is removed stops.
//
// Read home.go for the location of state, object.go and hold.go for the locks, slots.go for the ports,
// then machine.go and provider.go.
package local
