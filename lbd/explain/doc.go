// Package explain explains routing decisions: it queries every balancer of a service for its record
// of a request, joins the parts of a forwarded request, and formats them as text.
//
// Read explanation.go first: it queries the balancers and joins the parts. page.go formats an explanation,
// table.go formats the candidates of one decision, and reasons.go contains a description of every
// reason.
package explain
