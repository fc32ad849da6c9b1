// Package provision describes the objects of a service on this computer and in clouds (balancers,
// replicas, the name server, and their prerequisites) and changes them into the desired state. The
// controller is not an object: it runs on balancers' machines. Diff is a pure function that computes the
// changes; Apply executes them through a Provider. Every step is idempotent: to recover from a crash
// between any two steps, run Diff and Apply again.
//
// Read object.go first, then diff.go, then apply.go. The providers are in the packages below this one. The other files,
// by purpose:
//   - what clouds offer: offering.go, class.go (interchangeable replicas), catalogue.go, price.go, quota.go,
//     reservation.go, block.go (EC2 Capacity Blocks)
//   - parts of desired objects: binary.go, image.go, network.go, endpoints.go, engine.go, naming.go; zone.go has public
//     DNS names
//   - checks and advice before a launch: launch_check.go, check_result.go, advice.go, launch_advice.go
//   - limits on launches: launch_gate.go, launch_record.go, backoff.go, fence.go (the controller's lease)
//   - spot machines: interruption.go, spot_history.go, spot_record.go, spot_order.go
//   - calls to clouds: providers.go (the provider of each cloud), transport.go, cache.go, errors.go
package provision
