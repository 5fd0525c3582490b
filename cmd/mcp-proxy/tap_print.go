package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// printMessages prints the lines of a tap for people, until they end.
func printMessages(to *output, from io.Reader) error {
	colour := os.Getenv("NO_COLOR") == ""
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		to.command(readableMessage(line, to.width(), colour) + "\n")
	}
}

// readableMessage formats a line of a tap for people, cut to width (0: not cut). The content of the
// message, if any, follows on a line of its own.
func readableMessage(line []byte, width int, colour bool) string {
	var l struct { // any line of a tap
		proxy.Passed
		proxy.LeftOut
	}
	if json.Unmarshal(line, &l) != nil {
		return oneLine(string(line), width)
	}
	if l.LeftOut.LeftOut > 0 {
		return fmt.Sprintf("… %d left out", l.LeftOut.LeftOut)
	}
	text := fmt.Sprintf("%s %-8s %-28s %s", l.Time.Local().Format("15:04:05.000"), l.Session, routeOf(&l.Passed), aboutMessage(&l.Passed))
	text = oneLine(text, width)
	if l.Error != nil && colour {
		text = paint(red, text)
	}
	if l.Message != nil {
		text += "\n" + printable(string(l.Message))
	}
	return text
}

// routeOf returns the two ends between which a message passes.
func routeOf(l *proxy.Passed) string {
	there := string(l.Side)
	switch l.Side {
	case "client":
		there = cmp.Or(l.Client, there)
	case "upstream":
		there = cmp.Or(l.Upstream, there)
	}
	there = oneLine(there, 18)
	if l.Way == "in" {
		return there + " → proxy"
	}
	return "proxy → " + there
}

// aboutMessage describes a message: its method, tool, kind, id, size, time and error.
func aboutMessage(l *proxy.Passed) string {
	words := []string{cmp.Or(l.Method, "?")}
	if l.Tool != "" {
		words = append(words, l.Tool)
	}
	if l.Kind != "notification" {
		words = append(words, string(l.Kind))
	}
	if l.ID != nil {
		words = append(words, "id "+string(l.ID))
	}
	words = append(words, strconv.Itoa(l.Bytes)+" B")
	if l.TookMs > 0 {
		words = append(words, time.Duration(l.TookMs*float64(time.Millisecond)).String())
	}
	if e := l.Error; e != nil {
		if words = append(words, "error"); e.Code != 0 {
			words = append(words, strconv.Itoa(e.Code))
		}
		words = append(words, e.Reason, e.Event)
	}
	return printable(strings.Join(strings.Fields(strings.Join(words, " ")), " "))
}
