// Package agent is the agent on every machine of a service in a cloud, with its operator's client.
//
// A machine boots without secrets: it only has its name and the fingerprint of its service's CA. It
// generates a key, publishes the key's fingerprint where only it and its cloud account can write,
// and waits. An operator, or the controller, reads the fingerprint and delivers, once, a
// certificate for that key and a Deployment: units, configuration and secrets. From then on both
// sides authenticate each other by certificates. docs/security.md describes the permissions.
//
// Read deployment.go first; then agent.go, serve.go and units.go, the agent; operator.go, the
// client. run_*.go run programs, proxy.go is the proxy that only lets balancers use an engine,
// publish.go and notice.go call the cloud from inside the machine.
package agent
