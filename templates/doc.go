// Package templates embeds the starter service.yaml of each cloud, and the cloud-init
// document, bootstrap scripts and systemd unit of a VM. Read templates.go and
// cloudinit.go. The embedded files are in the same directory; each starter is a valid
// service.yaml.
package templates
