#!/bin/sh
# The loader finds the library by its cache.
/sbin/ldconfig
