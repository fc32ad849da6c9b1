//go:build compare && !linux

package proxy_test

import "testing"

func TestCompareProxy(t *testing.T) {
	t.Fatal("comparing proxies: needs Linux: CPU time and memory are read from /proc")
}
