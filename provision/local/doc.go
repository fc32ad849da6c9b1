// Package local provisions a service on this computer: simulated engines, balancers and a controller as
// background processes on the loopback address.
//
// The observed state is the set of held locks. Every background process takes an exclusive advisory lock on
// its own object file when it starts, writes its description to the file, and holds the lock until it exits
// (HoldObject). This has several advantages. The starting process records nothing, so a crash leaves no
// orphan. A reused process id is not mistaken for the object. A second process of the same object cannot
// start. A process whose object file is removed stops.
//
// Read home.go (the location of state) first, then object.go and hold.go (the locks), slots.go (the ports),
// machine.go and provider.go.
package local
