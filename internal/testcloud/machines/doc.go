// Package machines provides emulated clouds whose machines are processes: each runs the agent of its
// cloud-init document on this computer, at a loopback address of its own, so that tests can bring up,
// use, break and take down a service "in clouds" without one. Engines must be simulated: there are no
// containers and no GPUs.
//
// Read clouds.go first; machine.go is one machine, metadata.go its metadata server.
package machines
