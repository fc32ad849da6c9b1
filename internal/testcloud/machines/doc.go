// Package machines makes emulated clouds whose machines are processes: each runs the
// agent of its cloud-init document on this computer, at a loopback address of its own, so
// that a service "in clouds" can be brought up, used, broken and taken down without one.
// Engines have to be simulated ones: there are no containers and no GPUs.
//
// Read clouds.go first; machine.go is one machine, inside.go what its cloud tells it.
package machines
