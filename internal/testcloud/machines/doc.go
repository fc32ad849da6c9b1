// Package machines provides emulated clouds whose machines are processes on this computer. Each process runs the
// agent of its machine's cloud-init document, at its own loopback address. With them tests can run a complete
// service without a real cloud. Engines must be simulated, because there are no containers and no GPUs.
//
// Read clouds.go first. machine.go contains one machine, metadata.go its metadata server.
package machines
