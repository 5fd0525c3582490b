package main

import (
	"bytes"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// An envelope is what a proxy must know of a message: where its id is, and the method.
type envelope struct {
	start, end int // of the id; zeros if there is none
	method     string
}

// A reader is what reads envelopes, kept for the next one.
type reader struct {
	decoder jsontext.Decoder
	text    bytes.Buffer // which the decoder does not copy
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// lenient is a variable, so that its slice is allocated once.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// read returns the envelope of msg, all of whose tokens it has seen.
func read(msg []byte) (e envelope, err error) {
	r := readers.Get().(*reader)
	defer readers.Put(r)
	r.text = *bytes.NewBuffer(msg)
	d := &r.decoder
	d.Reset(&r.text, lenient...)
	if _, err = d.ReadToken(); err != nil {
		return e, err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return e, err
		}
		switch name.String() {
		case "id":
			value, err := d.ReadValue()
			if err != nil {
				return e, err
			}
			e.end = int(d.InputOffset())
			e.start = e.end - len(value)
		case "method":
			value, err := d.ReadToken()
			if err != nil {
				return e, err
			}
			e.method = value.String()
		default:
			if err := d.SkipValue(); err != nil {
				return e, err
			}
		}
	}
	_, err = d.ReadToken()
	return e, err
}
