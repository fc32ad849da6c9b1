// Package service defines the types that every other package uses (tier, region, replica state),
// the structure of service.yaml, and its only validator. The package is pure: it parses the bytes
// that it receives and accesses neither files nor the network.
//
// Read types.go first, then spec.go. The validator starts in parse.go: syntax.go parses bytes into
// a tree, bind.go stores the tree in a Spec key by key, and check.go checks keys against each
// other. The values that a key accepts are listed in rules.go, values.go and defaults.go; the JSON
// schema (schema.go) is generated from the same tables. A new key needs a struct field with a yaml
// tag, a rule, and a row in docs/service-yaml.md.
package service
