// Package templates embeds the texts that skyserve hands out: the starter
// service.yaml of each cloud, and what a machine in a cloud is born with. Read
// templates.go and cloudinit.go; the texts stand beside them, the starters each a
// valid service.yaml of its own.
package templates
