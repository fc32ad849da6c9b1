// Package discover finds replicas without Kubernetes: in a file that other programs write, and in DNS. It
// reports the complete list of each source whenever it changes; the balancer attaches new replicas and
// drains missing ones.
//
// A DNS name is, in this package, a URL that begins with dns+ or srv+: it stands for several replicas. The URL
// http://engine-1.internal:8000 is one replica.
//
// A source that cannot be read keeps its last list and reports a problem: a broken file or a failing
// resolver must not remove a replica.
//
// Read discover.go first (the sources and their lists), then file.go (watching a file), parse.go (its
// formats) and name.go (DNS names).
package discover
