// Package service holds the nouns that every other room speaks (tier, region,
// replica state), the shape of service.yaml, and the one validator of it. It is
// pure: it reads bytes it is given and touches neither files nor the network.
//
// Read nouns.go first, then spec.go.
package service
