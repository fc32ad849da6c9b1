// Package skypilot converts a service of SkyServe (SkyPilot's serving system) to a service.yaml. Read
// convert.go first.
package skypilot
