// Package service holds the nouns that every other room speaks (tier, region,
// replica state), the shape of service.yaml, and the one validator of it. It is
// pure: it reads bytes it is given and touches neither files nor the network.
//
// Read nouns.go first, then spec.go. The validator is parse.go: syntax.go turns
// bytes into a tree, bind.go stores the tree in a Spec key by key, check.go
// looks at how the keys fit each other. What a key allows stands in rules.go,
// words.go and defaults.go; the JSON schema (schema.go) is made from the same
// tables. A new key is a struct field with a yaml tag, a rule, and a row in
// docs/service-yaml.md.
package service
