// Package local provisions a service on this machine: simulated engines,
// balancers and a controller as background processes on the loopback address.
//
// What exists is what holds a lock. Every background process takes an exclusive
// advisory lock on its own object file when it starts and keeps it for its
// life (Hold), having written there who it is. So nothing has to be recorded
// when a process is started, a crash between starting and recording leaves no
// orphan, a reused process id deceives nobody, and a second copy of the same
// object refuses to start. A process whose object file is removed stops.
//
// Read home.go for where state lives, object.go and hold.go for the locks,
// slots.go for their ports, then machine.go and provider.go.
package local
