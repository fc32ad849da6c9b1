// Package record keeps the calls to a cloud's APIs in a file, for bug reports and for tests that compare the
// emulated clouds with the real ones. It removes secrets before anything is written.
//
// Read record.go first: the file and the transport. redact.go removes secrets from a message, by the names of
// its fields; value.go removes them from one text, by its content. read.go reads a recording.
package record
