// Package testcloud emulates AWS and Google Cloud for tests. Its servers implement the wire protocols of the
// clouds' own SDKs: the query protocol of EC2 and IAM, the XML of Route 53, the JSON of Compute Engine. They
// store their objects in memory. Tests can inject faults: slow calls, throttling, lack of capacity, lost
// responses, and eventually consistent lists.
//
// Read faults.go first, which decides the outcome of each call in every cloud. Then read ec2.go (AWS), gce.go
// (Google Cloud) or route53.go (DNS).
package testcloud
