package wire

import "regexp"

// localAddress is the local end of a connection in the text of an error: "10.0.0.1:53422->" in
// "read tcp 10.0.0.1:53422->10.0.0.2:8080: connection reset by peer".
var localAddress = regexp.MustCompile(`\S*:\d+->`)

// WithoutLocalAddress removes the addresses of this machine from the text of a network error. Their ports differ between
// connections. Without them, repeated failures for one reason have one text.
func WithoutLocalAddress(text string) string { return localAddress.ReplaceAllString(text, "") }
