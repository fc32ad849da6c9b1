//go:build unix

package wire

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
)

// secureHosts plays a script over TLS and returns the transports under comparison.
func secureHosts(b *testing.B, play func(nc net.Conn)) (url string, transports map[string]http.RoundTripper) {
	b.Helper()
	s, _ := secureHost(b, func(http.ResponseWriter, *http.Request) {}) // for its certificate
	config := &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"http/1.1"}}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for nc, err := ln.Accept(); err == nil; nc, err = ln.Accept() {
			go func() {
				defer nc.Close()
				play(nc)
			}()
		}
	}()
	trust := s.Client().Transport.(*http.Transport).TLSClientConfig
	return "https://" + ln.Addr().String(), map[string]http.RoundTripper{
		"wire":    NewTransport(Options{Direct: true, TLS: trust}),
		"nethttp": &http.Transport{TLSClientConfig: trust, MaxIdleConnsPerHost: 512, DisableCompression: true, ReadBufferSize: 2 << 10},
	}
}

// BenchmarkPostTLS is BenchmarkPost over TLS.
func BenchmarkPostTLS(b *testing.B) {
	url, transports := secureHosts(b, func(nc net.Conn) {
		for buf := make([]byte, 4<<10); takeRaw(nc, buf); {
			if _, err := io.WriteString(nc, benchAnswer); err != nil {
				return
			}
		}
	})
	for name, rt := range transports {
		b.Run(name, func(b *testing.B) {
			defer closeIdle(rt)
			req := benchRequest(b.Context(), url)
			timed(b, 1, func() {
				req.Body, _ = req.GetBody()
				resp, err := rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
				resp.Body.Close()
			})
		})
	}
}

// BenchmarkEventTLS is BenchmarkEvent over TLS, including the host's share.
func BenchmarkEventTLS(b *testing.B) {
	chunk := []byte(strconv.FormatInt(int64(len(benchEvent)), 16) + "\r\n" + benchEvent + "\r\n")
	for _, name := range []string{"wire", "nethttp"} {
		b.Run(name, func(b *testing.B) {
			turn := make(chan struct{})
			defer close(turn)
			url, transports := secureHosts(b, func(nc net.Conn) {
				if !takeRaw(nc, make([]byte, 4<<10)) {
					return
				}
				_, _ = io.WriteString(nc, benchStream)
				for range turn {
					if _, err := nc.Write(chunk); err != nil {
						return
					}
				}
			})
			rt := transports[name]
			defer closeIdle(rt)
			resp, err := rt.RoundTrip(benchRequest(b.Context(), url))
			if err != nil {
				b.Fatal(err)
			}
			defer resp.Body.Close()
			buf := make([]byte, 4<<10)
			timed(b, 1, func() {
				turn <- struct{}{}
				if _, err := resp.Body.Read(buf); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
