// Package explain explains routing decisions: it queries every balancer of a service for its record
// of a request, joins the parts of a forwarded request, and formats them as text.
//
// Read story.go first: querying balancers and joining parts. page.go formats a story, table.go
// formats the candidates of one decision, reasons.go contains a sentence for every reason.
package explain
