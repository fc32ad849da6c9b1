// Package agent contains the agent that runs on every machine of a service, in a cloud or emulated on
// the operator's computer, and its client, Client.
//
// A machine boots without secrets: it only has its name and the fingerprint of its service's CA. It
// generates a key and publishes the key's fingerprint. Only the machine and the owner of its AWS
// account or Google Cloud project can publish it. An operator or the controller reads the
// fingerprint and enrols the machine once: it sends a certificate for that key and a Deployment
// (units, configuration and secrets). From then on both sides authenticate each other by
// certificates. docs/security.md describes the permissions.
//
// Read deployment.go first, then agent.go, serve.go and units.go (the agent), and client.go (the
// client). run_*.go run units. proxy.go is the proxy through which balancers use an engine.
// publish.go, notice.go, maintenance.go, advice.go, weights_s3.go and weights_gcs.go call the cloud's
// metadata server.
package agent
