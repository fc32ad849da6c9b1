package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// post is the command "post URL BODY" of scripts: it sends a JSON document and prints the response as it
// arrives.
func post(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: post URL BODY")
		return 2
	}
	resp, err := http.Post(args[0], "application/json", strings.NewReader(args[1]))
	if err == nil {
		defer resp.Body.Close()
		_, err = io.Copy(os.Stdout, resp.Body)
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}
