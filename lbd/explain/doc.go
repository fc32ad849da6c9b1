// Package explain tells why a request went where it went: it asks every
// balancer of a service what it remembers of the request, joins the parts of a
// forwarded one, and writes them for a person.
//
// Read story.go first: what is gathered and how parts are joined. page.go writes
// a story as text, table.go the candidates of one decision, words.go the plain
// sentence for every reason.
package explain
