// Package testcloud holds servers that speak the wire protocols of clouds well
// enough for their own SDKs: EC2's and IAM's queries, Route53's XML, Compute
// Engine's JSON. They keep what they make in memory, and fail as clouds do, when
// they are told to: late, throttled, out of capacity, with lost answers, or with
// lists that do not show yet what was just made.
//
// Read faults.go first: what becomes of a call is decided there, the same way for
// every cloud.
package testcloud
