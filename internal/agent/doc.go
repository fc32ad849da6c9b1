// Package agent is the agent on every machine of a service in a cloud, and how an
// operator speaks to it.
//
// A machine comes up knowing what is not secret: its name, and the fingerprint of its
// service's authority. It makes a key, publishes the key's fingerprint where only it
// and its cloud account can write, and waits. An operator, or the controller, that
// read the fingerprint hands over, once, a certificate for that key and a Deployment:
// what to run, configuration and secrets. From then on both sides know each other by
// certificates. docs/security.md has who can do what.
//
// Read deployment.go first, which is what is handed over; then agent.go, serve.go
// and units.go, the agent; operator.go, the other side. run_*.go run programs, front.go
// lets balancers and nobody else use an engine, publish.go and notice.go speak to the
// cloud from inside the machine.
package agent
