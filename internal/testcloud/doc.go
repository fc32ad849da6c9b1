// Package testcloud emulates clouds: its servers implement the wire protocols well enough for the
// clouds' own SDKs: EC2's and IAM's queries, Route53's XML, Compute Engine's JSON. They keep their
// objects in memory and can inject the failures of clouds: slow calls, throttling, lack of capacity,
// lost responses, and lists that lag behind.
//
// Read faults.go first: it decides the outcome of each call, in the same way for every cloud.
package testcloud
