// Package templates embeds the texts that skyserve hands out: the starter
// service.yaml of each cloud. Read templates.go; the texts stand beside it, each
// a valid service.yaml of its own.
package templates
