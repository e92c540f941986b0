const React = require("react");
const { renderToString } = require("react-dom/server");
const { Button } = require("@mui/material");
const { format } = require("date-fns");
const { chunk } = require("lodash");
const { range, toArray } = require("rxjs");

exports.edition = 0;
exports.page = () => renderToString(React.createElement(Button, null, `edition ${exports.edition}`));
exports.day = () => format(new Date(2024, 0, 1), "yyyy-MM-dd");
exports.pairs = () => chunk([1, 2, 3], 2);
exports.numbers = (then) => range(1, 3).pipe(toArray()).subscribe(then);
